package engine

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// branchPassword gives a password of the branch's own: always the same for one branch and
// another for every other, kept nowhere, and unknown to whoever has no access to the
// engine. It is made of the data root's random id and the moment of the branch's making.
func (e *Engine) branchPassword(ctx context.Context, b Branch) (string, error) {
	p, _, err := e.api.PluginInspectWithRaw(ctx, contract.DriverName)
	if err != nil {
		return "", translate(err, "volume plugin pgoverlay")
	}
	for _, env := range p.Settings.Env {
		if id, ok := strings.CutPrefix(env, contract.EnvStoreID+"="); ok && id != "" {
			sum := sha256.Sum256([]byte(id + "\x00" + b.Branch + "\x00" + strconv.FormatInt(b.CreatedAt.UnixNano(), 10)))
			return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:15])), nil
		}
	}
	return "", &Error{Kind: KindSetup, Object: "volume plugin pgoverlay", Cause: "is not pinned to a data root",
		Hint: "run `docker pgbranch setup`"}
}

// ensurePassword sees to it that a role can log in with a password, in this branch alone.
// A password that it has already is not set again, since that would be a write. The
// server gets the secret in the form in which it keeps it (RFC 5803), so that no log of
// statements shows more.
func (e *Engine) ensurePassword(ctx context.Context, b Branch, role, password string) error {
	conn, err := e.connect(ctx, b, b.Manifest.Database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	found := conn.ExecParams(ctx, "SELECT COALESCE(rolpassword, ''), quote_ident(rolname) FROM pg_catalog.pg_authid WHERE rolname = $1",
		[][]byte{[]byte(role)}, nil, nil, nil).Read()
	if found.Err != nil {
		return &Error{Object: branchObject(b.Branch), Cause: fmt.Sprintf("role %q cannot be looked up", role), Err: found.Err}
	}
	if len(found.Rows) == 0 {
		return &Error{Kind: KindNotFound, Object: fmt.Sprintf("role %q", role), Cause: "is not in the seed " + b.SeedRef(),
			Hint: "name another with the option user"}
	}
	if scramMatches(string(found.Rows[0][0]), password) {
		return nil
	}
	secret, err := scramSecret(password, rand.Text(), scramIterations)
	if err != nil {
		return err
	}
	statement := "ALTER ROLE " + string(found.Rows[0][1]) + " PASSWORD '" + secret + "'"
	if _, err := conn.Exec(ctx, statement).ReadAll(); err != nil {
		return &Error{Object: branchObject(b.Branch), Cause: fmt.Sprintf("the password of role %q cannot be set", role), Err: err}
	}
	return nil
}

// scramIterations is the server's own default (src/include/common/scram-common.h,
// SCRAM_SHA_256_DEFAULT_ITERATIONS).
const scramIterations = 4096

// scramSecret gives a password as pg_authid keeps it (src/common/scram-common.c,
// scram_build_secret): SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY. The password
// must be ASCII, which needs no SASLprep.
func scramSecret(password, salt string, iterations int) (string, error) {
	salted, err := pbkdf2.Key(sha256.New, password, []byte(salt), iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, b64([]byte(salt)), b64(stored[:]), b64(mac("Server Key"))), nil
}

// scramMatches says whether a secret was made from a password.
func scramMatches(secret, password string) bool {
	parts := strings.Split(secret, "$")
	if len(parts) != 3 || parts[0] != "SCRAM-SHA-256" {
		return false
	}
	count, salt, ok := strings.Cut(parts[1], ":")
	iterations, err := strconv.Atoi(count)
	raw, saltErr := base64.StdEncoding.DecodeString(salt)
	if !ok || err != nil || saltErr != nil || iterations < 1 || iterations > 1<<20 {
		return false
	}
	again, err := scramSecret(password, string(raw), iterations)
	return err == nil && hmac.Equal([]byte(again), []byte(secret))
}
