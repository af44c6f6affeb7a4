def splits_rows(*a):
    return False


def lower_split_row(*a):
    raise NotImplementedError
