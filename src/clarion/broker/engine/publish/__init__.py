"""The publishers' side: puts in order and once, room and credit, delayed and staged batches."""
