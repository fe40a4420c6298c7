package volumedriver

import "context"

// createBranchOfBranch makes a branch of a branch.
func (d *Driver) createBranchOfBranch(_ context.Context, m *branchMeta, o options) error {
	return refuse(named("branch", m.Name), "a branch of a branch is not supported by this version",
		"make a branch of the seed that "+o.parent+" stands on")
}
