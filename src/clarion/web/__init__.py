"""The HTTP gateway: messages from sources that cannot link Python."""
