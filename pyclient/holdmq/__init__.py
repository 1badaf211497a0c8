"""HoldMQ for Python: messages that wait until they are read.

Start with `HoldMQ`, or with `AsyncHoldMQ`, which has the same methods for asyncio.

Public are the names of this package and of these modules: `holdmq.replies` and `holdmq.history_replies` (results),
`holdmq.errors`, `holdmq.commands` and `holdmq.history_commands` (commands without I/O, for pipelines),
`holdmq.durations` (forms of durations and times), `holdmq.slots` (slots of a cluster), `holdmq.server` (a server as a
child process), `holdmq.password` (a password from a file), `holdmq.cli_output` (for packages that add commands to
`holdmq`). All other modules may change in any release.
"""

from holdmq._async.channel import AsyncChannel
from holdmq._async.client import AsyncHoldMQ
from holdmq._async.dry_run import AsyncDryRun
from holdmq._async.history import AsyncHistory
from holdmq._async.history_patterns import AsyncHistoryPatterns
from holdmq._async.history_producer import AsyncHistoryProducer
from holdmq._async.history_store import AsyncHistoryStore
from holdmq._async.pipeline import AsyncPipeline, AsyncReply
from holdmq._async.producer import AsyncProducer
from holdmq._async.replay import AsyncReplay
from holdmq._async.session import AsyncSession
from holdmq._async.subscription import AsyncSubscription
from holdmq._async.topics import AsyncTopics
from holdmq._sync.channel import Channel
from holdmq._sync.client import HoldMQ
from holdmq._sync.dry_run import DryRun
from holdmq._sync.history import History
from holdmq._sync.history_patterns import HistoryPatterns
from holdmq._sync.history_producer import HistoryProducer
from holdmq._sync.history_store import HistoryStore
from holdmq._sync.pipeline import Pipeline, Reply
from holdmq._sync.producer import Producer
from holdmq._sync.replay import Replay
from holdmq._sync.session import Session
from holdmq._sync.subscription import Subscription
from holdmq._sync.topics import Topics
from holdmq.errors import (
    ArgumentError,
    CommandError,
    ConcurrentUseError,
    FencedError,
    ForkedError,
    GapError,
    HeldError,
    HoldLostError,
    HoldMQError,
    HoldMQWarning,
    IdentityError,
    InvalidTopicError,
    ModuleMissingError,
    MovingError,
    NoSessionError,
    NoStoreError,
    NotAnsweredError,
    NotEmptyError,
    ProducerError,
    QueueFullError,
    QuotaError,
    SessionFullError,
    StaleError,
    UnexpectedReplyError,
    WrongStoreError,
    WrongTypeError,
)
from holdmq.history_replies import (
    HistoryColumns,
    HistoryImport,
    HistoryInfo,
    HistoryMessage,
    HistoryPage,
    HistoryPlace,
    HistoryPolicy,
    PatternProposal,
    PatternStats,
    ReplayStep,
    ReplayStepKind,
    ShardInfo,
)
from holdmq.replies import (
    AckResult,
    AddResult,
    BridgeRow,
    ChannelMessage,
    ChannelPolicy,
    ChannelRow,
    ChannelsPage,
    ClientRow,
    Deliver,
    DryRunChannel,
    DryRunReport,
    DryRunSummary,
    Entry,
    EntryState,
    GroupRow,
    GroupsPage,
    Hold,
    ImportResult,
    MatchesPage,
    MatchRow,
    Message,
    OpenResult,
    Overflow,
    Page,
    ProducerChunk,
    Publisher,
    QueueBounds,
    QueuedMessage,
    ReplayResult,
    SessionInfo,
    SessionRow,
    SessionsPage,
    SubscriptionOptions,
    UserBounds,
    Will,
)

__all__ = [
    "AckResult",
    "AddResult",
    "ArgumentError",
    "AsyncChannel",
    "AsyncDryRun",
    "AsyncHistory",
    "AsyncHistoryPatterns",
    "AsyncHistoryProducer",
    "AsyncHistoryStore",
    "AsyncHoldMQ",
    "AsyncPipeline",
    "AsyncProducer",
    "AsyncReplay",
    "AsyncReply",
    "AsyncSession",
    "AsyncSubscription",
    "AsyncTopics",
    "BridgeRow",
    "Channel",
    "ChannelMessage",
    "ChannelPolicy",
    "ChannelRow",
    "ChannelsPage",
    "ClientRow",
    "CommandError",
    "ConcurrentUseError",
    "Deliver",
    "DryRun",
    "DryRunChannel",
    "DryRunReport",
    "DryRunSummary",
    "Entry",
    "EntryState",
    "FencedError",
    "ForkedError",
    "GapError",
    "GroupRow",
    "GroupsPage",
    "HeldError",
    "History",
    "HistoryColumns",
    "HistoryImport",
    "HistoryInfo",
    "HistoryMessage",
    "HistoryPage",
    "HistoryPatterns",
    "HistoryPlace",
    "HistoryPolicy",
    "HistoryProducer",
    "HistoryStore",
    "Hold",
    "HoldLostError",
    "HoldMQ",
    "HoldMQError",
    "HoldMQWarning",
    "IdentityError",
    "ImportResult",
    "InvalidTopicError",
    "MatchRow",
    "MatchesPage",
    "Message",
    "ModuleMissingError",
    "MovingError",
    "NoSessionError",
    "NoStoreError",
    "NotAnsweredError",
    "NotEmptyError",
    "OpenResult",
    "Overflow",
    "Page",
    "PatternProposal",
    "PatternStats",
    "Pipeline",
    "Producer",
    "ProducerChunk",
    "ProducerError",
    "Publisher",
    "QueueBounds",
    "QueueFullError",
    "QueuedMessage",
    "QuotaError",
    "Replay",
    "ReplayResult",
    "ReplayStep",
    "ReplayStepKind",
    "Reply",
    "Session",
    "SessionFullError",
    "SessionInfo",
    "SessionRow",
    "SessionsPage",
    "ShardInfo",
    "StaleError",
    "Subscription",
    "SubscriptionOptions",
    "Topics",
    "UnexpectedReplyError",
    "UserBounds",
    "Will",
    "WrongStoreError",
    "WrongTypeError",
]
