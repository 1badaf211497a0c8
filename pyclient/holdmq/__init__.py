"""HoldMQ for Python: messages that wait until somebody is there to read them.

`HoldMQ` and `AsyncHoldMQ` have the same methods, the latter's are awaited. What they reply are the small classes of
`holdmq.replies`, what they raise those of `holdmq.errors`; `holdmq.commands` has every command without I/O, for
pipelines. Nothing else is public; modules and folders with an underscore are nobody's business.
"""

from holdmq._async.channel import AsyncChannel
from holdmq._async.client import AsyncHoldMQ, AsyncPipeline, AsyncReply
from holdmq._async.producer import AsyncProducer
from holdmq._async.session import AsyncSession
from holdmq._async.subscription import AsyncSubscription
from holdmq._async.topics import AsyncTopics
from holdmq._sync.channel import Channel
from holdmq._sync.client import HoldMQ, Pipeline, Reply
from holdmq._sync.producer import Producer
from holdmq._sync.session import Session
from holdmq._sync.subscription import Subscription
from holdmq._sync.topics import Topics
from holdmq.errors import (
    ArgumentError,
    CommandError,
    FencedError,
    HeldError,
    HoldLostError,
    HoldMQError,
    InvalidTopicError,
    ModuleMissingError,
    MovingError,
    NoSessionError,
    NotEmptyError,
    ProducerError,
    SessionFullError,
    UnexpectedReplyError,
    WrongTypeError,
)
from holdmq.replies import (
    AckResult,
    AddResult,
    ChannelMessage,
    ChannelPolicy,
    Deliver,
    Entry,
    EntryState,
    Hold,
    Message,
    OpenResult,
    Page,
    Publisher,
    SessionInfo,
    SessionRow,
    SessionsPage,
    SubscriptionOptions,
    Will,
)

__all__ = [
    "AckResult",
    "AddResult",
    "ArgumentError",
    "AsyncChannel",
    "AsyncHoldMQ",
    "AsyncPipeline",
    "AsyncProducer",
    "AsyncReply",
    "AsyncSession",
    "AsyncSubscription",
    "AsyncTopics",
    "Channel",
    "ChannelMessage",
    "ChannelPolicy",
    "CommandError",
    "Deliver",
    "Entry",
    "EntryState",
    "FencedError",
    "HeldError",
    "Hold",
    "HoldLostError",
    "HoldMQ",
    "HoldMQError",
    "InvalidTopicError",
    "Message",
    "ModuleMissingError",
    "MovingError",
    "NoSessionError",
    "NotEmptyError",
    "OpenResult",
    "Page",
    "Pipeline",
    "Producer",
    "ProducerError",
    "Publisher",
    "Reply",
    "Session",
    "SessionFullError",
    "SessionInfo",
    "SessionRow",
    "SessionsPage",
    "Subscription",
    "SubscriptionOptions",
    "Topics",
    "UnexpectedReplyError",
    "Will",
    "WrongTypeError",
]
