//go:build linux

// Command guest is /init of the emulated machine: it runs the one program that
// /task.json names and tells its exit code on the second serial port.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

type task struct {
	Path, Dir string
	Args, Env []string
}

func main() {
	syscall.Mount("dev", "/dev", "devtmpfs", 0, "")
	syscall.Mount("proc", "/proc", "proc", 0, "")
	syscall.Mount("sys", "/sys", "sysfs", 0, "")
	ctl, err := openSerial("/dev/ttyS1")
	if err != nil {
		fmt.Println("@fail", err)
	} else if code, err := run(ctl); err != nil {
		fmt.Fprintf(ctl, "\n@fail %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
	} else {
		fmt.Fprintf(ctl, "\n@exit %d\n", code)
	}
	if ctl != nil {
		drain(ctl)
	}
	for {
		time.Sleep(time.Hour) // until the emulator is ended from outside
	}
}

func run(ctl *os.File) (code int, err error) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0, err
	}
	flags := " " + strings.Join(strings.Fields(string(info)), " ") + " "
	for _, f := range []string{"avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"} {
		if !strings.Contains(flags, " "+f+" ") {
			return 0, fmt.Errorf("the processor has no %s", f)
		}
	}
	b, err := os.ReadFile("/task.json")
	if err != nil {
		return 0, err
	}
	var t task
	if err := json.Unmarshal(b, &t); err != nil {
		return 0, err
	}
	out, err := openSerial("/dev/ttyS0")
	if err != nil {
		return 0, err
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(ctl, "\n@start\n")
	cmd := exec.Cmd{Path: t.Path, Dir: t.Dir, Args: t.Args, Env: t.Env, Stdin: null, Stdout: out, Stderr: out}
	err = cmd.Run()
	drain(out)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if s := exit.Sys().(syscall.WaitStatus); s.Signaled() {
			return 128 + int(s.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// openSerial opens a serial port that passes all bytes on as they are.
func openSerial(name string) (*os.File, error) {
	fd, err := syscall.Open(name, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	var t syscall.Termios
	if err := ioctl(f, syscall.TCGETS, uintptr(unsafe.Pointer(&t))); err != nil {
		return nil, err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = syscall.CS8 | syscall.CREAD | syscall.CLOCAL | syscall.B115200
	return f, ioctl(f, syscall.TCSETS, uintptr(unsafe.Pointer(&t)))
}

// drain waits until all is sent.
func drain(f *os.File) { ioctl(f, 0x5409, 1) } // TCSBRK

func ioctl(f *os.File, op, arg uintptr) error {
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), op, arg); e != 0 {
		return e
	}
	return nil
}
