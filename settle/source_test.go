package settle

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"runtime"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// clientPair is a certificate that nobody vouches for, and its key, as PEM.
func clientPair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	assert.NilError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	assert.NilError(t, err)
	encode := func(kind string, bytes []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER)
}

// tlsServer is one that asks for a client's certificate, and tells who came with how many.
func tlsServer(t *testing.T) (address string, shown <-chan int) {
	t.Helper()
	cert, key := clientPair(t)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	assert.NilError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NilError(t, err)
	t.Cleanup(func() { listener.Close() })
	came := make(chan int, 2)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// SSLRequest is eight bytes, and "S" says yes.
			_, _ = io.ReadFull(conn, make([]byte, 8))
			_, _ = conn.Write([]byte("S"))
			secure := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert})
			_ = secure.Handshake()
			came <- len(secure.ConnectionState().PeerCertificates)
			conn.Close()
		}
	}()
	return listener.Addr().String(), came
}

// A client's certificate and key are read at each handshake, long after the URL was.
func TestAClientsCertificateLasts(t *testing.T) {
	address, shown := tlsServer(t)
	cert, key := clientPair(t)
	s, err := parseSource(contract.Source{URL: "postgres://app@" + address + "/shop?sslmode=require", Cert: cert, Key: key})
	assert.NilError(t, err)
	runtime.GC() // which closes files that nobody holds
	runtime.GC()
	for _, why := range []purpose{forQueries, forReplication} {
		_, err := s.connect(t.Context(), s.replication(), why)
		assert.ErrorContains(t, err, "") // it is no Postgres
		assert.Equal(t, <-shown, 1, "%v", err)
	}
}
