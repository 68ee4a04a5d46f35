//go:build ignore

// Generate writes chart/files.
package main

import (
	"log"
	"os"
	"path/filepath"

	"taskproxy/cmd/internal/observe"
)

func main() {
	log.SetFlags(0)
	dir := filepath.Join("..", "..", "..", observe.Dir)
	files, err := observe.Files()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		log.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
