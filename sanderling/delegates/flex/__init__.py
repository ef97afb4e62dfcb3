"""The delegate `flex`: TensorFlow runs the operators of a model that TensorFlow Lite has not."""
