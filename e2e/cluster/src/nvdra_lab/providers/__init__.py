"""The provider of a lab's cluster: created here (`local`) or an existing one (`existing`)."""
