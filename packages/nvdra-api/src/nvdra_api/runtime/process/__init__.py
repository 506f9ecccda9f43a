"""What every component's process needs: loop, settings, threads, locks. No hardware, no network."""
