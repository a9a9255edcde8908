"""Teaching drafters to speak like their target: data, capture, objectives, trainer."""
