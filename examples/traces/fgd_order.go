// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0

// Computes in which order FGD's simulator submitted the pods of an openb trace, for the seeds of its published
// results. The order follows from Go's own generator of random numbers, so this program is written in Go; it needs no
// module.
//
//	go run fgd_order.go openb_node_list_gpu_node.csv openb_pod_list_default.csv > default.json
//
// FGD's simulator draws, for each seed: one number for a log line; a shuffle of the pods, sorted by name; pods that are
// submitted again, or left out, until the pods request 1.3 times the GPUs of the cluster; ten numbers that belong to
// its Kubernetes client; and a permutation of the nodes, which breaks ties.
package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

const (
	firstSeed, lastSeed = 42, 51
	percentOfCapacity   = 130
	drawsOfTheClient    = 10
)

// A pod of the list: its row, the thousandths of a GPU that it requests on each GPU, and in total.
type pod struct {
	row             int
	name            string
	perGPU, request int
}

type order struct {
	Order    []int `json:"order"`
	NodeRank []int `json:"node_rank"`
}

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: go run fgd_order.go NODES.csv PODS.csv"))
	}
	nodes, pods := read(os.Args[1]), podsOf(read(os.Args[2]))
	capacity := 0
	for _, node := range nodes {
		capacity += 1000 * number(node["gpu"])
	}
	seeds := map[string]order{}
	for seed := firstSeed; seed <= lastSeed; seed++ {
		seeds[strconv.Itoa(seed)] = submitted(int64(seed), pods, capacity*percentOfCapacity/100, len(nodes))
	}
	name := strings.TrimSuffix(filepath.Base(os.Args[2]), ".csv")
	encoder := json.NewEncoder(os.Stdout)
	if err := encoder.Encode(map[string]any{"trace": name, "capacity_milli_gpu": capacity, "seeds": seeds}); err != nil {
		fail(err)
	}
}

// The rows of the pods in the order of their submission, and the rank of each node.
func submitted(seed int64, byName []pod, target, nodes int) order {
	random := rand.New(rand.NewSource(seed))
	random.Int()
	pods := append([]pod{}, byName...)
	random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	total := 0
	for _, one := range pods {
		total += one.request
	}
	if total > target {
		for total > target {
			i := random.Intn(len(pods))
			total -= pods[i].request
			pods = append(pods[:i], pods[i+1:]...)
		}
	} else {
		for {
			again := byName[random.Intn(len(byName))]
			if total+again.perGPU > target {
				break
			}
			pods = append(pods, again)
			total += again.request
		}
	}
	for i := 0; i < drawsOfTheClient; i++ {
		random.Float64()
	}
	rows := make([]int, len(pods))
	for i, one := range pods {
		rows[i] = one.row
	}
	return order{rows, random.Perm(nodes)}
}

func podsOf(rows []map[string]string) []pod {
	pods := make([]pod, len(rows))
	for i, row := range rows {
		gpus, perGPU := number(row["num_gpu"]), number(row["gpu_milli"])
		pods[i] = pod{row: i, name: row["name"], perGPU: perGPU, request: gpus * perGPU}
	}
	sort.Slice(pods, func(i, j int) bool { return pods[i].name < pods[j].name })
	return pods
}

func read(path string) []map[string]string {
	file, err := os.Open(path)
	if err != nil {
		fail(err)
	}
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil || len(lines) == 0 {
		fail(fmt.Errorf("%s: not a CSV file with a header: %v", path, err))
	}
	rows := make([]map[string]string, 0, len(lines))
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, column := range lines[0] {
			row[column] = line[i]
		}
		rows = append(rows, row)
	}
	return rows
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		fail(fmt.Errorf("%q is not a whole number", text))
	}
	return value
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "fgd_order:", err)
	os.Exit(1)
}
