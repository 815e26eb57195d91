"""What a broker group replicates besides messages, and the plan of a repair: control records and
the values inside them."""
