package settle

import "strings"

// hbaRules let the right people into a branch. They come first, and pg_hba.conf is
// read up to the first match.
const hbaRules = `# pgoverlay: who may log in to a branch.
#
# From inside the branch's container, everybody, as in the stock image.
local   all          all                 trust
local   replication  all                 trust
host    all          all  127.0.0.1/32   trust
host    all          all  ::1/128        trust
host    replication  all  127.0.0.1/32   trust
host    replication  all  ::1/128        trust
# From elsewhere, roles with the passwords that they have in the source. The method
# md5 takes a SCRAM secret just as well.
host    all          all  all            md5
host    replication  all  all            md5
`

const hbaOld = `
# The rules of the source. They name its networks and ways to log in, and are
# commented out: a branch must start wherever they would not.
`

const oldRule = "#source# "

// editHBA returns pg_hba.conf for a branch. It may be applied to its own output.
func editHBA(text string) string {
	text = strings.TrimPrefix(text, hbaRules)
	text = strings.TrimPrefix(text, hbaOld)
	if strings.TrimSpace(text) == "" {
		return hbaRules
	}
	var b strings.Builder
	b.WriteString(hbaRules + hbaOld)
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && !strings.HasPrefix(trimmed, "#") {
			b.WriteString(oldRule)
		}
		b.WriteString(strings.TrimRight(line, "\r\n") + "\n")
	}
	return b.String()
}

const identMinimum = "# No user name maps: this file did not come with the copy.\n"
