"""A broker group's directory as a whole: opened at a start, or restarted from one survivor. The
entry point is `store.GroupStore`."""
