//go:build linux

// Command emulate runs a static linux/amd64 program on an emulated processor
// that has AVX-512, for machines whose own processor does not have it.
//
// It starts the Bochs emulator with a Linux kernel and a file system held in
// memory, runs the program there, copies its output to standard output and
// exits with its exit code. There is no firmware, boot loader or disk: the
// unpacked kernel and the initramfs are put straight into the guest's memory,
// and the "BIOS" is some 100 bytes that switch to 64-bit mode and jump to the
// kernel. See ../avx512-emulate.sh, which installs and builds what this needs.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// exitFailed is the exit code when the program could not be run, or did not
// end in time.
const exitFailed = 125

func main() {
	log := func(format string, a ...any) { fmt.Fprintf(os.Stderr, "emulate: "+format+"\n", a...) }
	var (
		bochs   = flag.String("bochs", "bochs", "the emulator")
		kernel  = flag.String("kernel", "", "the kernel, a bzImage")
		initrd  = flag.String("init", "", "the program that runs as /init (see guest)")
		cpu     = flag.String("cpu", "corei7_skylake_x", "the emulator's processor model")
		mem     = flag.Int("mem", 1024, "memory of the guest, in MiB")
		ips     = flag.Int("ips", 200, "millions of instructions per second of the guest's clock")
		files   = flag.String("files", "", "files and folders to copy to the guest, separated by spaces")
		env     = flag.String("env", "", "NAME or NAME=VALUE for the program, separated by spaces")
		timeout = flag.Duration("timeout", 20*time.Minute, "time limit")
		verbose = flag.Bool("v", false, "show the kernel's messages and the times")
	)
	flag.Parse()
	if flag.NArg() == 0 {
		log("no program named")
		os.Exit(exitFailed)
	}
	code, err := run(&guest{
		bochs: *bochs, kernel: *kernel, init: *initrd, cpu: *cpu, mem: *mem, ips: *ips,
		files: strings.Fields(*files), env: strings.Fields(*env),
		timeout: *timeout, verbose: *verbose, args: flag.Args(),
	})
	if err != nil {
		log("%v", err)
		code = exitFailed
	}
	os.Exit(code)
}

type guest struct {
	bochs, kernel, init, cpu string
	mem, ips                 int
	files, env               []string
	timeout                  time.Duration
	verbose                  bool
	args                     []string
}

func run(g *guest) (code int, err error) {
	start := time.Now()
	dir, err := os.MkdirTemp("", "emulate-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := writeImages(g, dir); err != nil {
		return 0, err
	}
	emu, err := filepath.Abs(g.bochs)
	if err != nil {
		return 0, err
	}

	// The program's output comes on the first serial port, the kernel's and
	// init's messages on the second.
	out, outHold, err := fifo(filepath.Join(dir, "com1"))
	if err != nil {
		return 0, err
	}
	ctl, ctlHold, err := fifo(filepath.Join(dir, "com2"))
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(emu, "-q", "-f", "bochsrc")
	cmd.Dir = dir
	var emuOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &emuOut, &emuOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}

	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(os.Stdout, out)
		copied <- err
	}()
	type result struct {
		code int
		err  error
	}
	ended := make(chan result, 1)
	var messages []string
	ctlDone := make(chan bool)
	go func() {
		defer close(ctlDone)
		in := bufio.NewScanner(ctl)
		for in.Scan() {
			line := strings.TrimRight(in.Text(), "\r")
			switch word, rest, _ := strings.Cut(line, " "); word {
			case "@exit":
				n, err := strconv.Atoi(rest)
				ended <- result{n, err}
				return
			case "@fail":
				ended <- result{0, fmt.Errorf("in the guest: %s", rest)}
				return
			case "@start":
				if g.verbose {
					fmt.Fprintf(os.Stderr, "emulate: program starts after %.1f s\n", time.Since(start).Seconds())
				}
				continue
			}
			messages = append(messages, line)
			if g.verbose {
				fmt.Fprintln(os.Stderr, line)
			}
		}
	}()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, os.Interrupt, syscall.SIGTERM)

	var res result
	running := true
	select {
	case res = <-ended:
	case err := <-exited:
		running = false
		res.err = fmt.Errorf("the emulator ended early: %v\n%s", err, tail(emuOut.String()))
		if b, err := os.ReadFile(filepath.Join(dir, "log")); err == nil {
			res.err = fmt.Errorf("%w\n%s", res.err, tail(string(b)))
		}
	case <-time.After(g.timeout):
		res.err = fmt.Errorf("not done after %v", g.timeout)
	case s := <-sig:
		res.err = fmt.Errorf("%v", s)
	}
	if running {
		cmd.Process.Kill()
		<-exited
	}
	outHold.Close()
	ctlHold.Close()
	<-copied
	<-ctlDone
	if res.err != nil && !g.verbose {
		fmt.Fprintln(os.Stderr, tail(strings.Join(messages, "\n")))
	}
	if g.verbose {
		fmt.Fprintf(os.Stderr, "emulate: done after %.1f s\n", time.Since(start).Seconds())
	}
	return res.code, res.err
}

func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// fifo makes a named pipe and opens it for reading. The second file keeps a
// writer open, so that the reader sees no end before it is closed.
func fifo(name string) (r, hold *os.File, err error) {
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		return nil, nil, err
	}
	if r, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		return nil, nil, err
	}
	hold, err = os.OpenFile(name, os.O_WRONLY, 0)
	return r, hold, err
}

// writeImages writes the files that the emulator reads.
func writeImages(g *guest, dir string) error {
	b, err := os.ReadFile(g.kernel)
	if err != nil {
		return err
	}
	k, err := unpackKernel(b)
	if err != nil {
		return fmt.Errorf("%s: %w", g.kernel, err)
	}
	const align = 2 << 20
	initrdAddr := (k.addr + k.memSize + align - 1) / align * align
	ramfs, err := makeInitramfs(g)
	if err != nil {
		return err
	}
	memSize := uint64(g.mem) << 20
	if initrdAddr+uint64(2*len(ramfs)) > memSize {
		return fmt.Errorf("%d MiB of memory are too few for %d MiB of files", g.mem, len(ramfs)>>20)
	}
	khz := g.ips * 1000
	cmdline := fmt.Sprintf("console=ttyS1,115200 loglevel=%d acpi=off nolapic pci=off nosmp nokaslr mitigations=off "+
		"tsc=reliable tsc_early_khz=%d lpj=%d no_timer_check noreplace-smp audit=0 apparmor=0 selinux=0 lsm= nowatchdog "+
		"i8042.noaux i8042.nokbd i8042.nopnp random.trust_cpu=on "+
		"cryptomgr.notests=1 initcall_blacklist=load_system_certificate_list,trace_eval_init panic=-1 rdinit=/init",
		map[bool]int{false: 4, true: 7}[g.verbose], khz, khz*4)
	low := lowMemory(k, cmdline, initrdAddr, uint64(len(ramfs)), memSize)
	rc := fmt.Sprintf(`cpu: model=%s, count=1, ips=%d, reset_on_triple_fault=0
memory: guest=%d, host=%d
romimage: file=rom
vgaromimage: file=vgarom
optramimage1: file=low, address=0x%x
optramimage2: file=kernel, address=0x%x
optramimage3: file=initramfs, address=0x%x
display_library: nogui
vga: extension=none, update_freq=1
pci: enabled=0
ata0: enabled=0
ata1: enabled=0
mouse: enabled=0
clock: sync=none, time0=local
com1: enabled=1, mode=file, dev=com1
com2: enabled=1, mode=file, dev=com2
log: log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
`, g.cpu, g.ips*1e6, g.mem, g.mem, lowAddr, k.addr, initrdAddr)
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"bochsrc", []byte(rc)}, {"rom", rom(k.entry)}, {"vgarom", make([]byte, 512)}, {"low", low}, {"kernel", k.image}, {"initramfs", ramfs},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// task tells the guest's init what to run. The guest has the type too.
type task struct {
	Path, Dir string
	Args, Env []string
}

// makeInitramfs packs init, the program and the files in the cpio format that
// the kernel unpacks as its root file system. All have the same absolute path
// in the guest as here, and so has the working directory.
func makeInitramfs(g *guest) ([]byte, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	c := newCpio()
	c.dir("/dev")
	c.node("/dev/console", 5, 1)
	c.node("/dev/null", 1, 3)
	for _, d := range []string{"/proc", "/sys", "/tmp", "/etc"} {
		c.dir(d)
	}
	c.file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\n"))
	c.file("/etc/hosts", 0o644, []byte("127.0.0.1 localhost\n"))
	init, err := os.ReadFile(g.init)
	if err != nil {
		return nil, err
	}
	c.file("/init", 0o755, init)
	c.dir(wd)
	prog, err := filepath.Abs(g.args[0])
	if err != nil {
		return nil, err
	}
	for _, root := range append([]string{prog}, g.files...) {
		if root, err = filepath.Abs(root); err != nil {
			return nil, err
		}
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				c.dir(path)
				return nil
			}
			info, err := os.Stat(path) // what a link names is copied in its place
			if err != nil || !info.Mode().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			c.file(path, info.Mode().Perm(), b)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	env := []string{"PATH=/bin", "HOME=/", "TMPDIR=/tmp"}
	for _, e := range g.env {
		if !strings.Contains(e, "=") {
			v, ok := os.LookupEnv(e)
			if !ok {
				continue
			}
			e += "=" + v
		}
		env = append(env, e)
	}
	t, err := json.Marshal(task{Path: prog, Dir: wd, Args: g.args, Env: env})
	if err != nil {
		return nil, err
	}
	c.file("/task.json", 0o644, t)
	return c.end(), nil
}
