"""What follows from what exists: pure decisions. No asyncio, no clock, no files."""
