"""Where a lab's cluster comes from: made here (`local`), or there already (`existing`)."""
