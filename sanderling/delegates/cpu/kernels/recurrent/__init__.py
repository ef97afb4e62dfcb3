"""LSTM, RNN and SVDF: cells that walk over sequences."""
