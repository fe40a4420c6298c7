// Command web is the web service of the sample project: each request is a visit, which
// it writes to the database that DB_URL leads to, and answers with the number of visits.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		visits, err := visit(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, visits)
	})
	log.Fatal(http.ListenAndServe(":8080", nil))
}

func visit(ctx context.Context) (visits int, err error) {
	conn, err := pgx.Connect(ctx, os.Getenv("DB_URL"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS visit (at timestamptz NOT NULL DEFAULT now());
		INSERT INTO visit DEFAULT VALUES`)
	if err != nil {
		return 0, err
	}
	return visits, conn.QueryRow(ctx, "SELECT count(*) FROM visit").Scan(&visits)
}
