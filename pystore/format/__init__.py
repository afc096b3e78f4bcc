"""What upstream's bytes are called and hold: names, records, units, properties."""
