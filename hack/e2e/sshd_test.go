//go:build e2e

package e2e

import (
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// serveSSH runs an ssh server on loopback that lets one user in, by key, to run the one
// command that docker needs (docker/cli cli/connhelper), and gives the address. The
// client is OpenSSH's, with a configuration in the user's home: it looks for one in the
// home that the password file names, and nowhere else.
func serveSSH(t *testing.T, user stranger) (address string) {
	t.Helper()
	client, clientKey := newKey(t)
	host, _ := newKey(t)
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !slices.Equal(key.Marshal(), client.PublicKey().Marshal()) {
			return nil, fmt.Errorf("an unknown key")
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	at := onLoopback(t, func(conn net.Conn) { serveSSHConn(conn, config) })
	user.write(t, "key", clientKey, 0o600)
	_, port, _ := net.SplitHostPort(at)
	known := fmt.Sprintf("[127.0.0.1]:%s %s", port, ssh.MarshalAuthorizedKey(host.PublicKey()))
	user.write(t, "known_hosts", []byte(known), 0o600)
	user.write(t, "ssh_config", fmt.Appendf(nil, "IdentityFile %s/key\nIdentitiesOnly yes\nUserKnownHostsFile %s/known_hosts\n"+
		"StrictHostKeyChecking yes\nBatchMode yes\n", user.home, user.home), 0o600)
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	user.write(t, "ssh", fmt.Appendf(nil, "#!/bin/sh\nexec %s -F %s/ssh_config \"$@\"\n", program, user.home), 0o755)
	return "ssh://" + at
}

// newKey gives a key, and its private half as OpenSSH keeps it in a file.
func newKey(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

func serveSSHConn(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		if c.ChannelType() != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range requests {
				var run struct{ Command string }
				ok := r.Type == "exec" && ssh.Unmarshal(r.Payload, &run) == nil && strings.HasSuffix(run.Command, "docker system dial-stdio")
				_ = r.Reply(ok, nil)
				if ok {
					go dialStdio(channel)
				}
			}
		}()
	}
}

// dialStdio is the command on the engine's machine.
func dialStdio(channel ssh.Channel) {
	defer channel.Close()
	cmd := exec.Command("docker", "system", "dial-stdio")
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		go func() { _, _ = io.Copy(stdin, channel); _ = stdin.Close() }()
		err = cmd.Wait()
	}
	status := struct{ Status uint32 }{}
	if err != nil {
		status.Status = 1
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(&status))
}
