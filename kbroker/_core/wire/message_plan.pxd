"""Layouts and plans of messages.

A layout has the schema data of one struct, for all versions. A plan says which fields of a layout one version has on
the wire, and how. Layouts are made with their class, plans when a version is first used. Both live as long as the
process.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, uint8_t

from kbroker._core.base.raw_objects cimport PyTypeObject

# The kinds of values on the wire. The fixed-size kinds come first.
cdef enum:
    BOOL
    INT8
    INT16
    UINT16
    INT32
    UINT32
    INT64
    FLOAT64
    UUID
    STRING
    BYTES
    STRUCT

cdef extern from *:
    """
    __attribute__((unused)) static const int FIXED_SIZE[] = {1, 1, 2, 2, 4, 4, 8, 8, 16, 0, 0, 0};
    """
    const int FIXED_SIZE[12]     # bytes of a value of each kind; 0 where the size varies

cdef enum:
    # How a field gets its default.
    SHARED_DEFAULT       # one immutable object for all instances
    NEW_LIST
    NEW_STRUCT
    ALL_VERSIONS = 32767 # the upper end of a range like `3+`

cdef struct plan_t
cdef struct layout_t

cdef struct range_t:
    int low
    int high                     # below `low`: the range is empty

cdef struct field_t:
    PyObject *name               # interned
    Py_ssize_t offset            # position of the slot in an instance
    uint8_t kind
    bint is_array
    uint8_t default_kind
    PyObject *default_value      # NULL unless SHARED_DEFAULT
    layout_t *child              # layout of a STRUCT
    range_t versions
    range_t nullable
    range_t tagged
    int tag
    bint droppable               # a version without the field drops its value silently
    bint never_flexible

cdef struct op_t:
    # One field in one version.
    field_t *field
    uint8_t kind
    bint is_array
    bint nullable
    bint compact
    int8_t null_struct           # the value of the byte in front of a nullable struct that means null
    Py_ssize_t offset
    plan_t *child
    size_t element_size          # smallest size of an array element, in bytes

cdef struct plan_t:
    layout_t *layout
    int version
    bint flexible
    size_t least_size            # bytes that a value takes at least
    int op_count
    op_t *ops                    # in wire order
    int tagged_count
    op_t *tagged                 # by tag
    int absent_count
    field_t **absent             # fields that this version does not have

cdef struct layout_t:
    PyTypeObject *cls
    PyObject *name               # name of the class in error messages
    int field_count
    field_t *fields
    range_t versions             # of the message
    range_t flexible             # of the message
    plan_t **plans               # by version - versions.low; NULL until used

# Returns the layout of a message class or of one of its structs. Raises TypeError for any other class.
cdef layout_t *layout_of(PyObject *cls) except NULL
# Makes the layout of a class, without fields. define_fields adds these once all structs of the message have layouts.
cdef int define_class(object cls, str name, range_t versions, range_t flexible, Py_ssize_t field_count) except -1
cdef int define_fields(object cls, list fields, dict structs) except -1
# Parses `3+`, `2-5`, `7` or `none`.
cdef range_t parse_range(str text) except *
# Returns the plan of a version. Raises ProtocolError (UNSUPPORTED_VERSION) if the message has no such version.
cdef plan_t *plan_for(layout_t *layout, int version) except NULL
# Returns a new reference to a field's default.
cdef PyObject *new_default(field_t *field) except NULL
