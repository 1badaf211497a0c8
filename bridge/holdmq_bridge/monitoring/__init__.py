"""What a bridge process shows of itself: metrics and health over HTTP, $SYS topics, reports for `holdmq bridges`.

Uses `base`, `process` and `broker`.  Nothing else uses it but the start of the process.
"""
