package settle

import (
	"strconv"
	"strings"
)

// memoryUnits are those that the server takes for memory (memory_unit_conversion_table
// in guc.c), in bytes. They are case-sensitive there.
var memoryUnits = map[string]float64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}

// exceeds says whether a setting's value is above most. unit is that of a bare number,
// "" for a mere count. What is no number at all exceeds nothing: the server says so better.
func exceeds(value, most, unit string) bool {
	v, ok := amount(value, unit)
	limit, _ := amount(most, unit)
	return ok && v > limit
}

// amount reads a number with or without a unit, as parse_int in guc.c does; memory
// is in bytes.
func amount(value, unit string) (float64, bool) {
	value = strings.TrimSpace(value)
	end := strings.LastIndexAny(value, "0123456789.") + 1
	number, own := value[:end], strings.TrimSpace(value[end:])
	if unit != "" && own != "" {
		unit = own
	}
	if n, err := strconv.ParseInt(number, 0, 64); err == nil {
		number = strconv.FormatInt(n, 10) // 0x40 and 0100 are 64
	}
	n, err := strconv.ParseFloat(number, 64)
	factor := 1.0
	known := unit == "" && own == ""
	if unit != "" {
		factor, known = memoryUnits[unit]
	}
	return n * factor, err == nil && known
}
