"""Data sets: labels, random draws, augmentation, mini-batches made ahead, pictures for evaluation.

`detection.DetectionData` makes the mini-batch of a `Request`, `loader.Loader` has them made by processes,
`evaluation.EvaluationImages` reads pictures and truths in order. The way of a row: `sampling` (which pictures, which
numbers) - `pictures`, `labels` - `geometry` (which rectangle) - `truth`, `pixels` - `mosaic`, all called by `combine`.
"""
