"""What a checkpoint holds, by its headers: no weight is read to know what each card must hold."""
