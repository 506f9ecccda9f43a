"""What every component's process needs: event loop, threads, locks, clock."""
