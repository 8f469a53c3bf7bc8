module github.com/seed-091431b3/attention

go 1.24

require (
	github.com/stretchr/testify v1.10.0 // indirect
	golang.org/x/sys v0.33.0 // indirect
)
