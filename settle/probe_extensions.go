package settle

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// preloadSettings name libraries that are loaded without anybody's asking.
var preloadSettings = []string{"shared_preload_libraries", "session_preload_libraries", "local_preload_libraries"}

// preloaded are the libraries that a server with these settings loads.
func preloaded(settings map[string]string) []string {
	var values []string
	for _, name := range preloadSettings {
		values = append(values, settings[name])
	}
	found := libraries(values...)
	slices.Sort(found)
	return slices.Compact(found)
}

// extensionsWithin bounds how long a source of many databases is asked for extensions.
const extensionsWithin = 10 * time.Second

// extensions asks each database of the source for its extensions: an image without them
// is better refused before the copy. It is no failure where a database lets the user not
// in, or time is up: the settle sees them all. The first refusal is the last question, as
// each is a line in the source's log.
func (s source) extensions(ctx context.Context, conn *pgx.Conn) []contract.Extension {
	ctx, cancel := context.WithTimeout(ctx, extensionsWithin)
	defer cancel()
	found, err := extensionsOf(ctx, conn)
	if err != nil {
		return nil
	}
	others, err := texts(ctx, conn, `SELECT datname::text FROM pg_catalog.pg_database
		WHERE datallowconn AND datconnlimit <> -2 AND datname <> pg_catalog.current_database()
		AND pg_catalog.has_database_privilege(datname, 'CONNECT') ORDER BY datname`)
	if err != nil {
		return found
	}
	for _, name := range others {
		config := s.config.Copy()
		config.Database = name
		other, err := s.connect(ctx, config, forQueries)
		if err != nil {
			break
		}
		more, err := extensionsOf(ctx, other)
		other.Close(context.WithoutCancel(ctx))
		if err != nil {
			break
		}
		found = append(found, more...)
	}
	return found
}
