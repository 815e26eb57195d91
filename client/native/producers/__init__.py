"""Native producers: columns of messages become frames, frames travel on the stream of a broker
group, outcomes come back."""
