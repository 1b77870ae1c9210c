"""Operations in plain torch that are compiled for the processor they run on."""
