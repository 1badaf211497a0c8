"""The API: one module for each kind of resource. Each has the routes of `/api/v1`, and functions that pages call."""
