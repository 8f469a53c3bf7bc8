module github.com/seed-091431b3/attention/asm

go 1.24.0

require (
	github.com/mmcloughlin/avo v0.6.0
	golang.org/x/arch v0.23.0
)

require (
	golang.org/x/mod v0.29.0 // indirect
	golang.org/x/sync v0.17.0 // indirect
	golang.org/x/tools v0.38.0 // indirect
)
