"""Which log files may go, which are kept and why, how a trim is carried out, and which file is scrubbed next. Pure: the simulator runs it.
"""
