/* dryrun.h - CHANNEL.DRYRUN: of which channels a policy would hold messages, observed on live traffic.
 *
 * During a dry run, a PUBLISH takes the path on which its receivers are counted (channel/channel.c).  Each message
 * that the candidate policy would keep is counted for its channel, at the point where it would be kept.
 *
 * Invariants:
 *  1. A dry run keeps no message, writes no key, and replicates nothing.  A restart ends it.
 *  2. Its memory is bounded in channels and in bytes.  Messages of further channels are counted as left out. */
#ifndef HMQ_CHANNEL_DRYRUN_H
#define HMQ_CHANNEL_DRYRUN_H

#include "server/state.h"

int dryrun_start_command(server_ctx *ctx, server_string **argv, int argc);
int dryrun_stop_command(server_ctx *ctx, server_string **argv, int argc);
int dryrun_report_command(server_ctx *ctx, server_string **argv, int argc);

bool dryrun_is_active(void);
/* Does the candidate policy of an active dry run also keep messages that are heard, for any channel? */
bool dryrun_keeps_heard(void);

/* A message is published to this many receivers.  `may_write`: the publisher's user may write the channel's list.  The
 * context has the publisher's database selected. */
void dryrun_count(server_ctx *ctx, server_string *channel, server_string *message, int receivers, bool may_write);
/* A message is published whose receivers are not counted, because its user may not run CHANNEL.PUBLISH. */
void dryrun_count_skipped(void);

#endif
