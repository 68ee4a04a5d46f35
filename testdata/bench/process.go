package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// tree is a process and those that it started.
func tree(pid int) []int {
	all := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // that thread has ended
		}
		for _, child := range strings.Fields(string(text)) {
			if id, err := strconv.Atoi(child); err == nil {
				all = append(all, tree(id)...)
			}
		}
	}
	return all
}

// cpuSeconds is the processor time that a process and those that it started have used, user and system.
func cpuSeconds(pid int) (total float64) {
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux that matters
	for _, id := range tree(pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
		if err != nil {
			continue
		}
		// The name is in parentheses and may hold any byte. After it, state is the third field; utime and stime are the 14th and 15th.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, ticks := range fields[11:13] {
			n, _ := strconv.ParseFloat(ticks, 64)
			total += n / ticksPerSecond
		}
	}
	return total
}

var pss = regexp.MustCompile(`(?m)^Pss:\s+(\d+) kB`)

// memoryKB is the memory of a process and those that it started; what some share counts once.
func memoryKB(pid int) (total float64) {
	for _, id := range tree(pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", id))
		if err != nil {
			continue
		}
		if found := pss.FindSubmatch(text); found != nil {
			n, _ := strconv.ParseFloat(string(found[1]), 64)
			total += n
		}
	}
	return total
}
