package engine

import (
	"context"
	"hash/fnv"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/nat"
)

// postgresPort is the port inside every branch container.
const postgresPort = nat.Port("5432/tcp")

// Published ports come from a range below the kernel's default for outgoing
// connections (net.ipv4.ip_local_port_range, 32768 to 60999), so that no
// connection of the host holds one by chance. Docker's own choice of a free port
// would change at every start.
const (
	portFirst = 20000
	portCount = 12000
	// portTries bounds how many containers are made in search of a free port.
	portTries = 20
)

// Publish says where a branch's port 5432 is published. A zero Port means any
// free one, and a zero IP 127.0.0.1.
type Publish struct {
	IP   netip.Addr
	Port int
}

// ParsePublish reads the value of -p: PORT, or IP:PORT.
//
// It fails with KindInvalid.
func ParsePublish(value string) (Publish, error) {
	invalid := &Error{Kind: KindInvalid, Object: "--publish", Cause: strconv.Quote(value) + " is no port",
		Hint: "write a port, or an address and a port: 5433, 0.0.0.0:5433"}
	var p Publish
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		host, port = "", value
	}
	if host != "" {
		if p.IP, err = netip.ParseAddr(host); err != nil {
			return p, invalid
		}
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return p, invalid
	}
	p.Port = n
	return p, nil
}

func (p Publish) hostIP() string {
	if !p.IP.IsValid() {
		return "127.0.0.1"
	}
	return p.IP.String()
}

// ports gives the ports to try for a branch, in order: the one asked for, or
// those of the range from a place that the name decides, so that a branch made
// again under its old name is likely to get its old port. Ports that a container
// of this engine has, running or not, are left out.
func (e *Engine) ports(ctx context.Context, name string, asked Publish) ([]int, error) {
	if asked.Port != 0 {
		return []int{asked.Port}, nil
	}
	taken, err := e.takenPorts(ctx)
	if err != nil {
		return nil, err
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	start := int(h.Sum32() % portCount)
	local := strings.HasPrefix(e.api.DaemonHost(), "unix://")
	var list []int
	for i := 0; i < portCount && len(list) < portTries; i++ {
		port := portFirst + (start+i)%portCount
		if taken[port] || local && !free(asked.hostIP(), port) {
			continue
		}
		list = append(list, port)
	}
	return list, nil
}

func (e *Engine) takenPorts(ctx context.Context) (map[int]bool, error) {
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	taken := map[int]bool{}
	for _, c := range list {
		for _, p := range c.Ports {
			taken[int(p.PublicPort)] = true
		}
		// A stopped container reports no ports; ours carry theirs in a label.
		if port, err := strconv.Atoi(c.Labels[labelPort]); err == nil {
			taken[port] = true
		}
	}
	return taken, nil
}

// labelPort, on a container, repeats its published port.
const labelPort = "io.github.pgbranch.port"

func free(ip string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// portClash reports whether a container did not start because its port is in
// use, by another container (daemon/libnetwork/portallocator) or another program.
func portClash(err error) bool {
	text := err.Error()
	return strings.Contains(text, "port is already allocated") || strings.Contains(text, "address already in use")
}

// publishedPort reads where a container publishes 5432, running or not.
func publishedPort(c container.InspectResponse) (ip string, port int) {
	if c.HostConfig == nil {
		return "", 0
	}
	bindings := c.HostConfig.PortBindings[postgresPort]
	if c.NetworkSettings != nil && len(c.NetworkSettings.Ports[postgresPort]) > 0 {
		bindings = c.NetworkSettings.Ports[postgresPort]
	}
	for _, b := range bindings {
		if n, err := strconv.Atoi(b.HostPort); err == nil {
			return b.HostIP, n
		}
	}
	return "", 0
}
