"""What real boards answer, recorded, and compared with the simulator."""
