package settle

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"gotest.tools/v3/assert"
)

func TestHarmless(t *testing.T) {
	for text, want := range map[string]bool{
		"COMMENT ON EXTENSION plpgsql IS 'x'":                            true,
		"ALTER TABLE public.t OWNER TO rdsadmin":                         true,
		"ALTER FUNCTION f(text DEFAULT 'OWNER TO x') SET work_mem = '1'": false,
		"GRANT ALL ON SCHEMA public TO cloudsqlsuperuser":                true,
		"CREATE EXTENSION IF NOT EXISTS aws_s3 WITH SCHEMA public":       true,
		"CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION f()": true,
		"SET transaction_timeout = 0":                                    true,
		"SELECT pg_catalog.set_config('search_path', '', false)":         true,
		"SELECT pg_catalog.setval('public.n', 7, true)":                  false,
		"COPY public.t (a) FROM stdin":                                   false,
		"INSERT INTO t VALUES (1)":                                       false,
		"CREATE TABLE t (a int)":                                         false,
		"CREATE INDEX i ON t (a)":                                        false,
		"ALTER TABLE ONLY public.t ADD CONSTRAINT c PRIMARY KEY (a)":     false,
		"CREATE FOREIGN TABLE t (a int) SERVER s":                        false,
		"CREATE FUNCTION f() RETURNS int":                                false,
		"SETTLE":                                                         false,
		"nonsense":                                                       false,
	} {
		assert.Equal(t, harmless(text, &pgconn.PgError{Code: "42601"}), want, text)
	}
	assert.Assert(t, harmless("ALTER TABLE ONLY public.t DROP CONSTRAINT c", &pgconn.PgError{Code: "42P01"}))
	assert.Assert(t, !harmless("ALTER TABLE ONLY public.t DROP CONSTRAINT c", &pgconn.PgError{Code: "2BP01"}))
}

func TestShownHoldsNoSecret(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		"CREATE ROLE a WITH LOGIN PASSWORD 'hunter2'", "ALTER USER MAPPING FOR a SERVER s OPTIONS (password 'hunter2')",
		"CREATE SUBSCRIPTION s CONNECTION 'host=a password=hunter2' PUBLICATION p",
		"create server s options (password 'it''s hunter2')",
		"INSERT INTO users VALUES ('hunter2')", "insert into users (a) select 'hunter2'",
		"CREATE SUBSCRIPTION s CONNECTION 'host=a password=hunter2" + strings.Repeat("x", 9000),
	} {
		assert.Assert(t, !strings.Contains(shown(text), secret), shown(text))
	}
	assert.Equal(t, shown("CREATE  TABLE t\n(a text DEFAULT 'x')"), "CREATE TABLE t (a text DEFAULT 'x')")
}

func TestAdapt(t *testing.T) {
	p := &player{}
	assert.Equal(t, p.adapt("ALTER ROLE postgres WITH NOSUPERUSER INHERIT NOLOGIN PASSWORD 'NOLOGIN'"),
		"ALTER ROLE postgres WITH SUPERUSER INHERIT LOGIN PASSWORD 'NOLOGIN'")
	assert.Equal(t, p.adapt("ALTER ROLE app WITH NOSUPERUSER"), "ALTER ROLE app WITH NOSUPERUSER")
	create := "CREATE DATABASE \"a b\" WITH TEMPLATE = template0 ENCODING = 'LATIN1' LOCALE = 'xx_XX' TABLESPACE = fast"
	assert.Equal(t, p.adapt(create), "CREATE DATABASE \"a b\" WITH TEMPLATE = template0 ENCODING = 'LATIN1' LOCALE = 'xx_XX'")
	p.locale = "C.UTF-8"
	assert.Equal(t, p.adapt(create), "CREATE DATABASE \"a b\" TEMPLATE template0 LOCALE 'C.UTF-8' ENCODING 'LATIN1'")
	assert.Equal(t, databaseOf(create), "a b")
}

func TestConnectDatabase(t *testing.T) {
	for args, want := range map[string]string{
		"shop": "shop", `"My ""db"""`: `My "db"`, "-": "", "shop app": "shop",
		`-reuse-previous=on "dbname='a=b \'c\''"`: "a=b 'c'",
	} {
		got, ok := connectDatabase(args)
		assert.Assert(t, ok, args)
		assert.Equal(t, got, want, args)
	}
	for _, args := range []string{"postgres://a@b/c", "host=a dbname=b", `-reuse-previous=on "host=a"`} {
		_, ok := connectDatabase(args)
		assert.Assert(t, !ok, args)
	}
}
