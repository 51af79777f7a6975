package audit

import _ "embed" // for the schema

//go:embed record.schema.json
var schema []byte

// Schema is the JSON Schema of a line (draft 2020-12). Fields are only ever added
// to it, and none that is added is required: a line of an older guard is valid by
// it, and its own lines are valid by that of an older guard.
func Schema() []byte { return append([]byte(nil), schema...) }
