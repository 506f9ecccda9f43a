"""What makes a lab's cluster: this machine (`local`), kind (`kind`), somebody else (`existing`)."""
