// Renders a Helm chart as Helm does, for machines without it: Go's text/template with sprig and Helm's own functions.
//
// Standard input: {"chart": FOLDER, "release": NAME, "namespace": NAME, "values": {…}} as JSON, one request per line.
// Standard output: for each a line with {"values": the merged ones, "files": {NAME: TEXT}} or {"error": TEXT}.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

// How deep `include` may nest: as in Helm, a template that includes itself is an error and no crash.
const deepest = 1000

type object = map[string]interface{}

type request struct {
	Chart     string `json:"chart"`
	Release   string `json:"release"`
	Namespace string `json:"namespace"`
	Values    object `json:"values"`
}

type answer struct {
	Values object            `json:"values,omitempty"`
	Files  map[string]string `json:"files,omitempty"`
	Error  string            `json:"error,omitempty"`
}

// The files of a chart that are no templates, as `.Files` has them.
type files map[string][]byte

func (all files) Get(name string) string { return string(all[name]) }

func main() {
	requests, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var asked request
		if err := requests.Decode(&asked); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		done, err := rendered(asked)
		if err != nil {
			done = answer{Error: err.Error()}
		}
		if err := answers.Encode(done); err != nil {
			os.Exit(1)
		}
	}
}

func rendered(asked request) (answer, error) {
	chart, err := read(asked.Chart)
	if err != nil {
		return answer{}, err
	}
	described, defaults := object{}, object{}
	if err := yaml.Unmarshal(chart["Chart.yaml"], &described); err != nil {
		return answer{}, err
	}
	if err := yaml.Unmarshal(chart["values.yaml"], &defaults); err != nil {
		return answer{}, err
	}
	values := merged(defaults, asked.Values)
	root := template.New("chart").Option("missingkey=zero")
	root.Funcs(functions(root))
	names := []string{}
	for name, text := range chart {
		if strings.HasPrefix(name, "templates/") {
			if _, err := root.New(name).Parse(string(text)); err != nil {
				return answer{}, err
			}
			names = append(names, name)
			delete(chart, name)
		}
	}
	found := map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(filepath.Base(name), "_") {
			continue
		}
		var out bytes.Buffer
		if err := root.ExecuteTemplate(&out, name, top(asked, described, values, chart, name)); err != nil {
			return answer{}, err
		}
		// Helm does the same: a value that is missing is an empty text.
		text := strings.ReplaceAll(out.String(), "<no value>", "")
		if strings.TrimSpace(text) != "" {
			found[strings.TrimPrefix(name, "templates/")] = text
		}
	}
	return answer{Values: values, Files: found}, nil
}

func read(folder string) (files, error) {
	found := files{}
	err := filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		name, _ := filepath.Rel(folder, path)
		found[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	return found, err
}

// The values of a chart with those of its user: maps are merged, all else is replaced, null takes a value away.
func merged(defaults, given object) object {
	found := object{}
	for name, value := range defaults {
		found[name] = value
	}
	for name, value := range given {
		inner, isMap := value.(object)
		former, wasMap := found[name].(object)
		switch {
		case value == nil:
			delete(found, name)
		case isMap && wasMap:
			found[name] = merged(former, inner)
		default:
			found[name] = value
		}
	}
	return found
}

func top(asked request, described, values object, chart files, name string) object {
	inner := object{}
	for key, value := range described {
		inner[strings.ToUpper(key[:1])+key[1:]] = value
	}
	return object{
		"Values":       values,
		"Chart":        inner,
		"Files":        chart,
		"Release":      object{"Name": asked.Release, "Namespace": asked.Namespace, "Service": "Helm", "Revision": 1, "IsInstall": true, "IsUpgrade": false},
		"Capabilities": object{"KubeVersion": object{"Version": "v1.30.0", "Major": "1", "Minor": "30"}},
		"Template":     object{"Name": name, "BasePath": "templates"},
	}
}

func functions(root *template.Template) template.FuncMap {
	all := sprig.TxtFuncMap()
	delete(all, "env")
	delete(all, "expandenv")
	depth := 0
	all["include"] = func(name string, data interface{}) (string, error) {
		if depth++; depth > deepest {
			return "", fmt.Errorf("%s includes itself", name)
		}
		defer func() { depth-- }()
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	all["tpl"] = func(text string, data interface{}) (string, error) {
		copied, err := root.Clone()
		if err != nil {
			return "", err
		}
		parsed, err := copied.New("tpl").Parse(text)
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		err = parsed.Execute(&out, data)
		return out.String(), err
	}
	all["required"] = func(message string, value interface{}) (interface{}, error) {
		if text, isText := value.(string); value == nil || (isText && text == "") {
			return value, errors.New(message)
		}
		return value, nil
	}
	all["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	all["fromYaml"] = func(text string) object {
		found := object{}
		if err := yaml.Unmarshal([]byte(text), &found); err != nil {
			found["Error"] = err.Error()
		}
		return found
	}
	// There is no cluster to look into, as for `helm template`.
	all["lookup"] = func(...string) object { return object{} }
	return all
}
