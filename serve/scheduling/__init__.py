"""From requests to batches and back: tokenization, queue, scheduler, predictor."""
