"""The watcher: one sidecar reads one engine's pages, processes and kernel sockets, and serves them as metrics."""
