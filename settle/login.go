package settle

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// runLogin gives a branch's role a password that only this branch has, or tells the one
// that it has. It runs in the branch's own container, and the password passes through its
// standard input and output only.
func runLogin(ctx context.Context, in *input, _ *events) (contract.AgentEvent, error) {
	var req contract.LoginRequest
	if err := in.request(&req); err != nil {
		return contract.AgentEvent{}, err
	}
	file := filepath.Join(req.Root, contract.PasswordFile)
	login, err := readLogin(file)
	switch {
	case err == nil && login.User == req.User && req.Password == "" && !req.Rotate:
		return contract.AgentEvent{Login: login}, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return contract.AgentEvent{}, err
	}
	login = &contract.Login{User: req.User, Password: req.Password}
	if login.Password == "" {
		login.Password = newPassword()
	}
	if err := setLogin(ctx, req, login, file); err != nil {
		return contract.AgentEvent{}, err
	}
	return contract.AgentEvent{Login: login}, nil
}

func readLogin(file string) (*contract.Login, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var login contract.Login
	if err := json.Unmarshal(text, &login); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &login, nil
}

// setLogin writes the file under another name first: once the server has the password,
// only a rename is left, and no crash can lose what nobody else knows.
func setLogin(ctx context.Context, req contract.LoginRequest, login *contract.Login, file string) error {
	text, err := json.Marshal(login)
	if err != nil {
		return err
	}
	draft := file + ".new"
	if err := os.WriteFile(draft, append(text, '\n'), 0o600); err != nil {
		return err
	}
	err = alterPassword(ctx, req, login.Password)
	if err == nil {
		err = os.Rename(draft, file)
	}
	if err != nil {
		_ = os.Remove(draft)
	}
	return err
}

// alterPassword sends the verifier, so that the password itself is in no statement that
// a log or an extension may record. An expired password is of no use: VALID UNTIL goes.
func alterPassword(ctx context.Context, req contract.LoginRequest, password string) error {
	verifier, err := scramVerifier(password)
	if err != nil {
		return err
	}
	config, err := localConfig(socketDir, 5432, req.Superuser, req.Database, "pgoverlay login")
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"log_statement": "none", "log_min_duration_statement": "-1", "log_min_error_statement": "panic",
		"default_transaction_read_only": "off"} {
		config.RuntimeParams[name] = value
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "ALTER ROLE "+quoteIdent(req.User)+" PASSWORD "+quoteLiteral(verifier)+" VALID UNTIL 'infinity'").ReadAll()
	return err
}

// newPassword gives 144 random bits in characters that need no escaping anywhere.
func newPassword() string {
	var b [18]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// scramIterations is the server's default (scram_iterations).
const scramIterations = 4096

// scramVerifier is what pg_authid holds of a password (pg_be_scram_build_secret in
// auth-scram.c, scram_build_secret in scram-common.c; RFC 5802 and 7677). The password
// is ASCII, which SASLprep leaves as it is.
func scramVerifier(password string) (string, error) {
	var salt [16]byte
	rand.Read(salt[:])
	salted, err := pbkdf2.Key(sha256.New, password, salt[:], scramIterations, sha256.Size)
	if err != nil {
		return "", err
	}
	key := func(label string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(label))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(key("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", scramIterations, encode(salt[:]), encode(stored[:]), encode(key("Server Key"))), nil
}
