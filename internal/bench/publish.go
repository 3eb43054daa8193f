package bench

// payload is size bytes that differ from record to record only by what the log adds.
func payload(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz012345"[(i*7+i/32)%32]
	}
	return b
}
