// SPDX-License-Identifier: Apache-2.0

// The reference CDI library behind a pipe: one JSON question per line in, one JSON answer per line
// out. It judges nothing itself; each answer is what a function of the library returned.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// question has the operation and the arguments of all operations.
type question struct {
	Op          string            `json:"op"`
	Data        []byte            `json:"data"` // base64: documents need not be text
	Dirs        []string          `json:"dirs"`
	OCI         json.RawMessage   `json:"oci"`
	Devices     []string          `json:"devices"`
	Text        string            `json:"text"`
	Annotations map[string]string `json:"annotations"`
	Plugin      string            `json:"plugin"`
	DeviceID    string            `json:"deviceID"`
}

// answer has what was found out, "error" with the library's message where it refused, and "panic"
// where it crashed; what was found out before stays.
type answer map[string]any

type operation func(q question, found answer) error

func main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cdi-oracle:", err)
		os.Exit(1)
	}
}

func serve(questions io.Reader, answers io.Writer) error {
	scratch, err := os.MkdirTemp("", "cdi-oracle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	operations := map[string]operation{
		"spec":               readSpec(filepath.Join(scratch, "spec.yaml")),
		"cache":              describeCache,
		"inject":             inject,
		"oci":                normalise,
		"name":               parseName,
		"annotation-key":     annotationKey,
		"update-annotations": updateAnnotations,
		"parse-annotations":  parseAnnotations,
	}
	in, out := bufio.NewReaderSize(questions, 1<<20), json.NewEncoder(answers)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var q question
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if err := out.Encode(ask(operations[q.Op], q)); err != nil {
			return err
		}
	}
}

func ask(op operation, q question) (found answer) {
	found = answer{}
	defer func() {
		if crash := recover(); crash != nil {
			found["error"], found["panic"] = fmt.Sprint(crash), true
		}
	}()
	if err := op(q, found); err != nil {
		found["error"] = err.Error()
	}
	return found
}

// readSpec loads a document as a runtime does. One that decodes has "spec", the library's own
// structure, and "minimum", whether it is valid or not.
func readSpec(path string) operation {
	return func(q question, found answer) error {
		raw, err := cdi.ParseSpec(q.Data)
		if err != nil {
			return err
		}
		if raw != nil {
			found["spec"] = raw
			if found["minimum"], err = specs.MinimumRequiredVersion(raw); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, q.Data, 0o600); err != nil {
			return err
		}
		_, err = cdi.ReadSpec(path, 0)
		return err
	}
}

func load(q question) *cdi.Cache {
	cache, _ := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(q.Dirs...))
	return cache
}

// describeCache tells which file each device is taken from, and how many errors each file has.
func describeCache(q question, found answer) error {
	cache := load(q)
	devices, problems := map[string]string{}, map[string]int{}
	for _, name := range cache.ListDevices() {
		devices[name] = cache.GetDevice(name).GetSpec().GetPath()
	}
	for path, errs := range cache.GetErrors() {
		problems[path] = len(errs)
	}
	found["devices"], found["errors"] = devices, problems
	found["vendors"], found["classes"] = cache.ListVendors(), cache.ListClasses()
	return nil
}

// inject gives the OCI spec afterwards, or the names that do not resolve.
func inject(q question, found answer) error {
	spec, err := decodeOCI(q.OCI)
	if err != nil {
		return err
	}
	found["unresolved"], err = load(q).InjectDevices(spec, q.Devices...)
	found["oci"] = spec
	return err
}

// normalise passes an OCI spec through the runtime's structures; a field they lack is an error.
func normalise(q question, found answer) error {
	spec, err := decodeOCI(q.OCI)
	found["oci"] = spec
	return err
}

func decodeOCI(data []byte) (*oci.Spec, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	spec := &oci.Spec{}
	return spec, decoder.Decode(spec)
}

func parseName(q question, found answer) error {
	vendor, class, device := parser.ParseDevice(q.Text)
	qualifier, rest := parser.ParseQualifier(q.Text)
	found["device"], found["qualifier"] = []string{vendor, class, device}, []string{qualifier, rest}
	found["isVendor"] = parser.ValidateVendorName(q.Text) == nil
	found["isClass"] = parser.ValidateClassName(q.Text) == nil
	found["isDevice"] = parser.ValidateDeviceName(q.Text) == nil
	_, _, _, err := parser.ParseQualifiedName(q.Text)
	return err
}

func annotationKey(q question, found answer) (err error) {
	found["key"], err = cdi.AnnotationKey(q.Plugin, q.DeviceID)
	return err
}

func updateAnnotations(q question, found answer) (err error) {
	found["annotations"], err = cdi.UpdateAnnotations(q.Annotations, q.Plugin, q.DeviceID, q.Devices)
	return err
}

func parseAnnotations(q question, found answer) (err error) {
	found["keys"], found["devices"], err = cdi.ParseAnnotations(q.Annotations)
	return err
}
