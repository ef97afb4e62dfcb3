"""Graph -> Graph on the .tflite itself: smaller, faster, with a report of what it cost."""
